"""The whole federation on one machine: broker, cloud, gateways and agents as processes of their own.

What a person would start in eleven terminals is started here, watched, judged on test images, and ended.
Everything runs through the same commands that a person types.
"""
