"""Changes that commands plan, and looks before and after them."""
