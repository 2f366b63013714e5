// Signs in, receives the server's events, and shows the view of the URL.

import { CostsView } from "./costs.js";
import { fill, h, say } from "./dom.js";
import { FleetView } from "./fleet.js";
import { GroupView, GroupsView } from "./groups.js";
import { MovesView } from "./moves.js";
import { NodeView } from "./node.js";
import { SettingsView } from "./settings.js";
import { signIn } from "./signin.js";
import { linkOf, sentencesOf } from "./standing.js";
import { Store } from "./store.js";
import { VmView } from "./vm.js";

const VIEWS = [
  ["", "Fleet", FleetView],
  ["migrations", "Migrations", MovesView],
  ["groups", "Groups", GroupsView],
  ["costs", "Costs", CostsView],
  ["settings", "Settings", SettingsView],
];
const DETAILS = { vm: VmView, node: NodeView, group: GroupView };
const at = (id) => document.getElementById(id);
const store = new Store();
let view = null;
let isDue = false;

function route() {
  const [name, ...rest] = location.hash.replace(/^#\/?/, "").split("/").map(decoded);
  const known = VIEWS.find(([path]) => path === name);
  const View = known ? known[2] : Object.hasOwn(DETAILS, name) ? DETAILS[name] : FleetView;
  for (const link of at("nav").children) {
    const isHere = link.getAttribute("href") === `#/${known ? name : ""}` && Boolean(known);
    if (isHere) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (view) view.close();
  view = new View(store, rest);
  fill(at("main"), view.element);
  document.title = `${view.title} · Autoscaling`;
  view.update();
  at("main").scrollTop = 0;
}

function decoded(part) {
  try { return decodeURIComponent(part); } catch { return part; }
}

function onNews() {
  if (isDue) return;
  isDue = true;
  requestAnimationFrame(() => { isDue = false; if (view) view.update(); showStanding(); });
}

function showStanding() {
  const [state, word] = view ? linkOf(store) : ["waits", ""];
  at("link").dataset.state = state;
  at("link").hidden = !view;
  say(at("link-text"), word);
  const said = view ? sentencesOf(store) : [];
  say(at("banner"), said.join(" "));
  at("banner").dataset.state = state === "lost" ? "lost" : "note";
  at("banner").hidden = said.length === 0;
}

async function sessionAgain() {
  try {
    const answer = await fetch("api/session");
    if (view && answer.ok && !(await answer.json()).signedIn) leave();
  } catch { /* no response; the store retries */ }
}

async function signOut() {
  const headers = { "Content-Type": "application/json" };
  const isOut = await fetch("api/session", { method: "DELETE", headers }).then((answer) => answer.ok, () => false);
  if (!isOut) { say(at("out"), "Sign-out failed; try again"); return; }
  history.replaceState(null, "", location.pathname);
  if (view) leave();
}

// Ends the session: clears everything that it showed, and stops its requests.
function leave() {
  store.forget();
  view.close();
  view = null;
  FleetView.forget();
  fill(at("nav"));
  fill(at("main"));
  say(at("title"), "");
  at("tip").hidden = true;
  document.title = "Autoscaling";
  begin();
}

async function begin() {
  at("out").hidden = true;
  showStanding();
  const session = await signIn(at("main"));
  say(at("title"), session.title);
  say(at("out"), "Sign out");
  at("out").hidden = false;
  fill(at("nav"), VIEWS.map(([path, title]) => h("a", { href: `#/${path}` }, title)));
  store.open();
  route();
  showStanding();
}

function useTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  if (view) view.update();
}

at("theme").addEventListener("click", () => {
  const isDark = getComputedStyle(document.documentElement).getPropertyValue("--is-dark").trim() === "1";
  const theme = isDark ? "light" : "dark";
  try { localStorage.setItem("theme", theme); } catch { /* it lasts until the page is closed */ }
  useTheme(theme);
});
try { useTheme(localStorage.getItem("theme")); } catch { /* the system's theme */ }
at("out").addEventListener("click", signOut);
addEventListener("hashchange", () => { if (view) route(); });
document.addEventListener("visibilitychange", () => store.shown());
store.addEventListener("news", onNews);
store.addEventListener("link", onNews);
store.addEventListener("refused", sessionAgain);
begin();
