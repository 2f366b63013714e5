// How much the page knows and what of it is old, in words. "All is well" is said only where all is known.

const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString();

// Why there is nothing to show yet; empty once there is.
export function waitsFor({ heardAt, link, standing }) {
  if (!heardAt) return link === "lost" ? "No answer from the page's server yet, or too many pages are open: it is asked again and again." : "Asking the page's server …";
  return standing && standing.listed ? "" : "The cluster is being read …";
}

export function isSure(store) {
  const { link, standing } = store;
  return link === "live" && !waitsFor(store) && standing.heard && standing.ready && !standing.silent;
}

// The word beside the dot, and whether the dot is bright, dull or red.
export function linkOf(store) {
  if (store.link === "lost") return ["lost", "not connected"];
  if (store.link !== "live" || waitsFor(store)) return ["waits", "waiting"];
  return isSure(store) ? ["live", "live"] : ["lost", "partly old"];
}

export function sentencesOf(store) {
  const { link, heardAt, signAt, standing } = store;
  if (link === "lost" && heardAt) return [`No connection to the page's server: what you see is from ${clock(signAt / 1000)}.`];
  const waits = waitsFor(store);
  const said = waits ? [waits] : [];
  if (!standing) return said;
  if (standing.silent) said.push(`The API server has said nothing since ${clock(standing.silent)}: sizes, permits and migrations may be old.`);
  if (!standing.heard) said.push("The scheduler does not respond: reservations and denials are old.");
  else if (!standing.ready) said.push("The scheduler has not read the cluster yet.");
  if (standing.idle) said.push(`No VM is moved: ${standing.idle}.`);
  if (standing.waiting) said.push(`Pods that wait for room: ${standing.waiting}.`);
  if (standing.unreadable) said.push(`Objects that cannot be read: ${standing.unreadable}.`);
  return said;
}
