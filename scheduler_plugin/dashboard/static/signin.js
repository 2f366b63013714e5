// Signs in with the token of a one-time link, which is removed from the URL at once, or with a pasted token. In a
// cluster no link signs in: a user who follows another one's link would see that one's data.

import { fill, h, say } from "./dom.js";

export async function signIn(main) {
  const token = new URLSearchParams(location.hash.replace(/^#/, "")).get("token");
  if (token) history.replaceState(null, "", location.pathname);
  let session = token && (await current()).way === "link" ? await send(token) : null;
  while (!session || !session.signedIn) {
    const found = await current();
    if (found.signedIn) return found;
    session = await showForm(main, found.way, Boolean(token));
  }
  return session;
}

async function current() {
  for (;;) {
    try {
      const answer = await fetch("api/session");
      if (answer.ok) return await answer.json();
    } catch { /* no response: retry */ }
    await new Promise((done) => setTimeout(done, 1500));
  }
}

async function send(token) {
  try {
    const answer = await fetch("api/session", {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ token }),
    });
    return answer.ok ? await answer.json() : { signedIn: false, problem: (await answer.json()).error };
  } catch { return { signedIn: false, problem: "the server does not respond" }; }
}

function showForm(main, way, hadLink) {
  const problem = h("p", { class: "problem", role: "alert" }, hadLink ? "That link has been used or is not from this server." : "");
  const field = h("input", { type: "password", id: "token", autocomplete: "off", spellcheck: "false", required: true });
  const words = way === "link"
    ? "Open the link that autoscale web printed last, or paste its token."
    : "Paste a token of the cluster. You see VMs of namespaces in which you may list VMs, and databases in pods of namespaces in which you may get pods.";
  const hint = way === "link" ? null : h("p", { class: "hint" }, h("code", {}, "kubectl create token ACCOUNT"));
  return new Promise((done) => {
    const submit = async (event) => {
      event.preventDefault();
      const session = await send(tokenIn(field.value));
      if (session.signedIn) done(session);
      else { say(problem, `Not signed in: ${session.problem}.`); field.select(); }
    };
    const button = h("button", { type: "submit" }, "Sign in");
    const form = h("form", { class: "card signin", onsubmit: submit }, h("h1", {}, "Sign in"),
      h("p", {}, words), hint, h("label", { for: "token" }, "Token"), field, button, problem);
    fill(main, form);
    field.focus();
  });
}

const tokenIn = (text) => text.trim().replace(/^.*#token=/, "");
