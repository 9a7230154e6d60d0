"""The index: turns tool documents and an intent into calibrated hits.

A stdio client starts the gateway for every session, so onnxruntime, tokenizers, faiss, Stemmer and
sentence_transformers (5 s, 560 MB) are imported inside the constructors that need them; this is the only exception to
the rule against imports inside functions.
"""
