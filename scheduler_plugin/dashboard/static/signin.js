// Signs in with the token of a one-time link, which is removed from the URL at once, or with a pasted token. In a
// cluster no link signs in: a user who follows another one's link would see that one's data.

import { fill, h, setText } from "./dom.js";

export async function signIn(main) {
  const token = new URLSearchParams(location.hash.replace(/^#/, "")).get("token");
  if (token) history.replaceState(null, "", location.pathname);
  let session = token && (await fetchSession()).way === "link" ? await send(token) : null;
  while (!session || !session.signedIn) {
    const current = await fetchSession();
    if (current.signedIn) return current;
    session = await showForm(main, current.way, Boolean(token));
  }
  return session;
}

async function fetchSession() {
  for (;;) {
    try {
      const response = await fetch("api/session");
      if (response.ok) return await response.json();
    } catch { /* no response: retry */ }
    await new Promise((done) => setTimeout(done, 1500));
  }
}

async function send(token) {
  try {
    const response = await fetch("api/session", {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ token }),
    });
    return response.ok ? await response.json() : { signedIn: false, problem: (await response.json()).error };
  } catch { return { signedIn: false, problem: "the server does not respond" }; }
}

function showForm(main, way, hadLink) {
  const problem = h("p", { class: "problem", role: "alert" }, hadLink ? "This link has already been used, or belongs to another server." : "");
  const field = h("input", { type: "password", id: "token", autocomplete: "off", spellcheck: "false", required: true });
  const text = way === "link"
    ? "Open the last link that autoscale web printed, or paste its token."
    : "Paste a token of the cluster. You will see VMs in namespaces where you may list VMs, and databases in pods in namespaces where you may get pods.";
  const hint = way === "link" ? null : h("p", { class: "hint" }, h("code", {}, "kubectl create token ACCOUNT"));
  return new Promise((done) => {
    const submit = async (event) => {
      event.preventDefault();
      const session = await send(tokenIn(field.value));
      if (session.signedIn) done(session);
      else { setText(problem, `Not signed in: ${session.problem}.`); field.select(); }
    };
    const button = h("button", { type: "submit" }, "Sign in");
    const form = h("form", { class: "card signin", onsubmit: submit }, h("h1", {}, "Sign in"),
      h("p", {}, text), hint, h("label", { for: "token" }, "Token"), field, button, problem);
    fill(main, form);
    field.focus();
  });
}

const tokenIn = (text) => text.trim().replace(/^.*#token=/, "");
