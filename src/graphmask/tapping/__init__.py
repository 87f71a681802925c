"""The user's model to messages, and other values put in their place; the model is left as it was found."""
