// Texts about missing and stale data. The page says that there are no problems only if all data is current.

const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString();

// The reason why there is no data yet; empty if there is.
export function waitsFor({ heardAt, link, standing }) {
  if (!heardAt) return link === "lost" ? "No response from the page's server yet, or too many pages are open; retrying." : "Connecting to the page's server …";
  return standing && standing.listed ? "" : "The page's server is reading the cluster …";
}

export function isSure(store) {
  const { link, standing } = store;
  return link === "live" && !waitsFor(store) && standing.heard && standing.ready && !standing.silent;
}

// The connection's state, which is the dot's colour, and its word.
export function linkOf(store) {
  if (store.link === "lost") return ["lost", "not connected"];
  if (store.link !== "live" || waitsFor(store)) return ["waits", "waiting"];
  return isSure(store) ? ["live", "live"] : ["lost", "partly stale"];
}

export function sentencesOf(store) {
  const { link, heardAt, signAt, standing } = store;
  if (link === "lost" && heardAt) return [`No connection to the page's server; the data is from ${clock(signAt / 1000)}.`];
  const waits = waitsFor(store);
  const said = waits ? [waits] : [];
  if (!standing) return said;
  if (standing.silent) said.push(`No data from the API server since ${clock(standing.silent)}; sizes, permits and migrations may be stale.`);
  if (!standing.heard) said.push("The scheduler does not respond: reservations and denials are stale.");
  else if (!standing.ready) said.push("The scheduler has not read the cluster yet.");
  if (standing.idle) said.push(`No migrations: ${standing.idle}.`);
  if (standing.waiting) said.push(`Pods that wait for capacity: ${standing.waiting}.`);
  if (standing.unreadable) said.push(`Objects that cannot be read: ${standing.unreadable}.`);
  return said;
}
