"""One file a verb: a function `verb`, whose signature is the verb's options, and `EXAMPLES` for its help."""
