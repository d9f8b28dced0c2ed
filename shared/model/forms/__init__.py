"""Numeric forms: what a decoder's weights and products become after it is built and filled.

The model code knows nothing of them; `choose` names them all and picks one.
"""
