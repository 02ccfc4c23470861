"""The trained model of a job for programs without Stretto, as Keras, TensorFlow, Parquet or safetensors.

``python -m stretto.export`` is the process that ``stretto export`` starts. See EXPORT.md beside the README.
"""
