"""The seams as a patch series for people who maintain an SGLang fork: made, applied, taken back and checked.

`python -m sglang_hisparse.patching` has the commands; standard library and git only. Nothing of SGLang is imported.
"""
