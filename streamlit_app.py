"""Attention Explorer: streamlit run streamlit_app.py."""

# A process that multiprocessing starts imports this file again, as __mp_main__: nothing may happen then.
if __name__ == "__main__":
    from explorer.ui import shell

    shell.run()
