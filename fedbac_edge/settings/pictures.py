"""What is known of public data sets: classes in label order, size, mean and deviation of training pixels."""

from __future__ import annotations

from fedbac_edge.settings.federation import ModelTable

_FASHION_CLASSES = "t-shirt trouser pullover dress coat sandal shirt sneaker bag ankle-boot"
_CIFAR10_CLASSES = "airplane automobile bird cat deer dog frog horse ship truck"
_CIFAR100_CLASSES = (
    "apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly "
    "camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup "
    "dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower "
    "leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid "
    "otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray "
    "road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar "
    "sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle "
    "wardrobe whale willow_tree wolf woman worm"
)

MODELS: dict[str, ModelTable] = {
    "fashion-mnist": ModelTable(
        classes=tuple(_FASHION_CLASSES.split()), input=(1, 28, 28), mean=(0.286,), std=(0.353,)
    ),
    "mnist": ModelTable(classes=tuple("0123456789"), input=(1, 28, 28), mean=(0.1307,), std=(0.3081,)),
    "cifar10": ModelTable(
        classes=tuple(_CIFAR10_CLASSES.split()),
        input=(3, 32, 32),
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.247, 0.2435, 0.2616),
    ),
    "cifar100": ModelTable(
        classes=tuple(_CIFAR100_CLASSES.split()),
        input=(3, 32, 32),
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
    ),
    "svhn": ModelTable(
        classes=tuple("0123456789"),
        input=(3, 32, 32),
        mean=(0.4377, 0.4438, 0.4728),
        std=(0.198, 0.201, 0.197),
    ),
}
"""Data set -> its classes in label order, image size, and mean and deviation of its training pixels."""
