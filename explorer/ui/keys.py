"""Keys: a button's shortcut also works while a radio or a slider has the focus.

The browser's event stops at such a control, and Streamlit leaves plain letters to every input, though these two have no
use for them (1.67). So the press is told to the page again, from its body. Text fields keep all keys.
"""

from __future__ import annotations

import streamlit as st

PASS_ON = """<script>
if (!window.explorerPassesKeysOn) {
  window.explorerPassesKeysOn = true;
  const shown = () => [...document.querySelectorAll('[aria-label^="Shortcut "]')].map((each) =>
    each.getAttribute("aria-label").replace("Shortcut ", "").replaceAll(" ", "").replace("⌘", "Ctrl").toLowerCase());
  const passOn = (event) => {
    const at = event.target;
    if (!event.isTrusted || event.altKey || at.tagName !== "INPUT" || !["radio", "range"].includes(at.type)) return;
    const name = (event.ctrlKey || event.metaKey ? "ctrl+" : "") + event.key.toLowerCase();
    if (!/^(ctrl[+]enter|[a-z])$/.test(name) || !shown().includes(name)) return;
    event.stopImmediatePropagation();
    event.preventDefault();
    const {key, code, keyCode, which, ctrlKey, metaKey, shiftKey} = event;
    const same = {key, code, keyCode, which, ctrlKey, metaKey, shiftKey, bubbles: true, cancelable: true};
    document.body.dispatchEvent(new KeyboardEvent(event.type, same));
  };
  window.addEventListener("keydown", passOn, true);
  window.addEventListener("keyup", passOn, true);
}
</script>"""


def draw() -> None:
    """Once a run, by the shell; shows nothing."""
    st.html(PASS_ON, unsafe_allow_javascript=True)
