// Texts about missing and stale data. The page says that there are no problems only if all data is current.

const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString();

// The reason why there is no data yet; empty if there is some.
export function loadingText({ receivedAt, link, status }) {
  if (!receivedAt) return link === "lost" ? "No response from the page's server yet, or too many pages are open; retrying." : "Connecting to the page's server …";
  return status && status.listed ? "" : "The page's server is still listing the cluster …";
}

export function isCurrent(store) {
  const { link, status } = store;
  return link === "live" && !loadingText(store) && status.responding && status.ready && !status.silent;
}

// The connection's state, which sets the dot's colour, and its label.
export function connectionOf(store) {
  if (store.link === "lost") return ["lost", "not connected"];
  if (store.link !== "live" || loadingText(store)) return ["waits", "waiting"];
  return isCurrent(store) ? ["live", "live"] : ["lost", "partly stale"];
}

export function statusSentences(store) {
  const { link, receivedAt, lastEventAt, status } = store;
  if (link === "lost" && receivedAt) return [`No connection to the page's server; the data is from ${clock(lastEventAt / 1000)}.`];
  const loading = loadingText(store);
  const sentences = loading ? [loading] : [];
  if (!status) return sentences;
  if (status.silent) sentences.push(`No data from the API server since ${clock(status.silent)}; sizes, permits and migrations may be stale.`);
  if (!status.responding) sentences.push("The scheduler does not respond: reservations and denials are stale.");
  else if (!status.ready) sentences.push("The scheduler has not listed the cluster yet.");
  if (status.idle) sentences.push(`No migrations: ${status.idle}.`);
  if (status.waiting) sentences.push(`Pods waiting for room: ${status.waiting}.`);
  if (status.unreadable) sentences.push(`Unreadable objects: ${status.unreadable}.`);
  return sentences;
}
