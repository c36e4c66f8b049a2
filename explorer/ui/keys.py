"""Keys: shortcuts also work while a radio or a slider has the focus, and none of several quick ones is lost.

The browser's event stops at such a control, and Streamlit leaves plain letters to every input, though these two have no
use for them (1.67). So the press is told to the page again, from its body. Text fields keep all keys.

Of two presses of one button before its run has begun Streamlit keeps one: Page Up and Page Down, a presenter's remote,
are told to it one after the other, each when the scene has changed. A key that is held counts once.
"""

from __future__ import annotations

import streamlit as st

PASS_ON = """<script>
if (!window.explorerPassesKeysOn) {
  window.explorerPassesKeysOn = true;
  const MOST_MS = 3000;  // a press that changes nothing holds up the others no longer
  const shown = () => [...document.querySelectorAll('[aria-label^="Shortcut "]')].map((each) =>
    each.getAttribute("aria-label").replace("Shortcut ", "").replaceAll(" ", "").replace("⌘", "Ctrl").toLowerCase());
  const again = (event) => {
    event.stopImmediatePropagation();
    event.preventDefault();
    const {key, code, keyCode, which, ctrlKey, metaKey, shiftKey} = event;
    const same = {key, code, keyCode, which, ctrlKey, metaKey, shiftKey, bubbles: true, cancelable: true};
    return (kind) => document.body.dispatchEvent(new KeyboardEvent(kind, same));
  };
  const waiting = [], place = () => document.querySelector(".stage-place")?.textContent;
  let isBusy = false;
  const next = () => {
    if (isBusy || !waiting.length) return;
    const before = place(), end = performance.now() + MOST_MS;
    isBusy = waiting.shift()();
    if (!isBusy) return next();
    const look = () => {
      if (place() === before && performance.now() < end) return setTimeout(look, 20);
      isBusy = false;
      next();
    };
    setTimeout(look, 20);
  };
  const inTurn = (event) => {
    const at = event.target;
    if (!event.isTrusted || !["PageUp", "PageDown"].includes(event.key)) return;
    if (["INPUT", "TEXTAREA"].includes(at.tagName) || at.isContentEditable) return;
    const sign = document.querySelector(`[aria-label="Shortcut ${event.key}"]`);
    if (!sign) return;
    const press = again(event);
    if (event.type !== "keydown" || event.repeat) return;
    waiting.push(() => {
      if (document.querySelector(`[aria-label="Shortcut ${event.key}"]`)?.closest("button").disabled) return false;
      press("keydown");
      press("keyup");
      return true;
    });
    next();
  };
  const passOn = (event) => {
    const at = event.target;
    if (!event.isTrusted || event.altKey || at.tagName !== "INPUT" || !["radio", "range"].includes(at.type)) return;
    const name = (event.ctrlKey || event.metaKey ? "ctrl+" : "") + event.key.toLowerCase();
    if (!/^(ctrl[+]enter|[a-z])$/.test(name) || !shown().includes(name)) return;
    again(event)(event.type);
  };
  for (const kind of ["keydown", "keyup"]) {
    for (const each of [passOn, inTurn]) window.addEventListener(kind, each, true);
  }
}
</script>"""


def draw() -> None:
    """Once a run, by the shell; shows nothing."""
    st.html(PASS_ON, unsafe_allow_javascript=True)
