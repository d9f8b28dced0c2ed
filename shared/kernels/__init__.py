"""Compiled kernels: a decoder step on integer weights, and draws of tokens, for x86 processors with AVX512-VNNI.

`csrc` is C, compiled once per machine by `build` and called through ctypes by `library`; `pack` lays weights out for
it, `cores` lets the engines of one machine share its cores. Knows neither model families nor the engine:
`model.forms.fused` puts a decoder on top, `engine.sampler` draws. Without a compiler or such a processor everything
runs in torch instead.
"""
