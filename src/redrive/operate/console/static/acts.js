// Forms that act: what is refused is said beside the button, and nothing that was typed is lost.
export const acts = () => {
  document.addEventListener("submit", async (event) => {
    const form = event.target.closest("form[data-act]");
    if (!form) return;
    event.preventDefault();
    const button = event.submitter || form.querySelector("button");
    const alert = form.querySelector("[role=alert]");
    const body = new URLSearchParams(new FormData(form, event.submitter));
    button.disabled = true;
    try {
      const answer = await fetch(form.getAttribute("action"), { method: "POST", body, headers: { Accept: "application/problem+json" } });
      if (answer.ok && answer.redirected) return location.assign(answer.url);
      if (answer.ok) return show(await answer.text());
      const said = await answer.json().catch(() => ({ detail: `The server answered ${answer.status}.` }));
      tell(alert, `${said.detail} ${said.next || ""}`);
    } catch {
      tell(alert, "The server does not answer. Nothing was done as far as can be told; try again.");
    } finally {
      button.disabled = false;
    }
  });

  // One sheet at a time; Escape and a click elsewhere close it.
  document.addEventListener("click", (event) => {
    for (const each of document.querySelectorAll("details.act[open]")) if (!each.contains(event.target)) each.open = false;
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    for (const each of document.querySelectorAll("details.act[open]")) {
      each.open = false;
      each.querySelector("summary").focus();
    }
  });
  document.addEventListener("toggle", (event) => {
    if (event.target.matches?.("details.act[open]")) event.target.querySelector("input:not([type=hidden], [type=checkbox])")?.focus();
  }, true);
};

const tell = (alert, words) => {
  alert.textContent = words;
  alert.hidden = false;
};

// A page that may not be asked for again (secrets that were revealed, a try): it is shown once, in place.
const show = (text) => {
  const page = new DOMParser().parseFromString(text, "text/html");
  document.body.dataset.topics = page.body.dataset.topics;
  document.getElementById("main").replaceWith(document.adoptNode(page.getElementById("main")));
  document.title = page.title;
  scrollTo(0, 0);
};
