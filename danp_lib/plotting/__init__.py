"""The book's figures; the only package that imports matplotlib."""
