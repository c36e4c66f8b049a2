"""Keys: shortcuts also work while a radio or a slider has the focus, and none of several quick ones is lost.

The browser's event stops at such a control, and Streamlit leaves plain letters to every input, though these two have no
use for them (1.67). So the press is told to the page again, from its body. Text fields keep all keys.

Of two presses of one button before its run has begun Streamlit keeps one: Page Up and Page Down, a presenter's remote,
are told to it one after the other. A key that is held counts once.
"""

from __future__ import annotations

import streamlit as st

PASS_ON = """<script>
if (!window.explorerPassesKeysOn) {
  window.explorerPassesKeysOn = true;
  const shown = () => [...document.querySelectorAll('[aria-label^="Shortcut "]')].map((each) =>
    each.getAttribute("aria-label").replace("Shortcut ", "").replaceAll(" ", "").replace("⌘", "Ctrl").toLowerCase());
  const again = (event) => {
    event.stopImmediatePropagation();
    event.preventDefault();
    const {key, code, keyCode, which, ctrlKey, metaKey, shiftKey} = event;
    const same = {key, code, keyCode, which, ctrlKey, metaKey, shiftKey, bubbles: true, cancelable: true};
    return () => document.body.dispatchEvent(new KeyboardEvent(event.type, same));
  };
  const GAP_MS = 300;
  let free = 0;
  const inTurn = (event) => {
    const at = event.target;
    if (!event.isTrusted || !["PageUp", "PageDown"].includes(event.key)) return;
    if (["INPUT", "TEXTAREA"].includes(at.tagName) || at.isContentEditable) return;
    if (!shown().includes(event.key.toLowerCase())) return;
    const press = again(event), now = performance.now();
    if (event.repeat) return;
    const isDown = event.type === "keydown", when = Math.max(now, isDown ? free : free - GAP_MS + 1);
    if (isDown) free = when + GAP_MS;
    if (when > now) setTimeout(press, when - now); else press();
  };
  const passOn = (event) => {
    const at = event.target;
    if (!event.isTrusted || event.altKey || at.tagName !== "INPUT" || !["radio", "range"].includes(at.type)) return;
    const name = (event.ctrlKey || event.metaKey ? "ctrl+" : "") + event.key.toLowerCase();
    if (!/^(ctrl[+]enter|[a-z])$/.test(name) || !shown().includes(name)) return;
    again(event)();
  };
  for (const kind of ["keydown", "keyup"]) {
    for (const each of [passOn, inTurn]) window.addEventListener(kind, each, true);
  }
}
</script>"""


def draw() -> None:
    """Once a run, by the shell; shows nothing."""
    st.html(PASS_ON, unsafe_allow_javascript=True)
