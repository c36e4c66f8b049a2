"""ui: the only part of the package that knows Streamlit. Importing it draws nothing."""
