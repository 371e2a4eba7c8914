"""From a served model to one file, and from that file to answers.

The build side (`graph`, `torchscript`, `quantise`) runs where models are made and needs onnx or torch; the
answering side (`session`, `infer`) runs on devices and needs numpy and onnxruntime, nothing else. Nothing
here knows of federations, brokers or rounds beyond the strings it stores as metadata. Importing this
package loads neither side.
"""
