// Where figures come from: the store's JSON, or what a report has embedded. Nothing is computed here.

const embedded = byId("embedded") ? JSON.parse(byId("embedded").textContent) : null;

class Problem extends Error {}

async function get(path) {
  if (embedded) {
    const found = embedded[path.split("?")[0]];
    if (found) return found;
    throw new Problem("This report does not hold that request; `kvpath view --traces FILE` shows all of them.");
  }
  let response;
  try {
    response = await fetch(`api/${path}`, { headers: { Accept: "application/json" } });
  } catch {
    throw new Problem(`Nothing answers at ${location.origin}. Is the store (or kvpath view) still running?`);
  }
  let body = null;
  try {
    body = await response.json();
  } catch {
    throw new Problem(`${location.origin} did not answer with JSON (status ${response.status}).`);
  }
  if (!response.ok) throw new Problem((body && body.error && body.error.message) || `Status ${response.status}.`);
  byId("source").textContent = body.source;
  return body;
}

const listing = { document: null, loading: null };

// The list fills up while the store analyses; onPart sees every part. Resolves when it is whole.
function loadRequests(onPart, again) {
  if (listing.document && !listing.document.left && !again) return Promise.resolve(listing.document);
  listing.loading = listing.loading || pollRequests().finally(() => (listing.loading = null));
  listing.onPart = onPart;
  return listing.loading;
}

async function pollRequests() {
  for (;;) {
    listing.document = await get("requests");
    if (listing.onPart) listing.onPart(listing.document);
    say(listing.document.left ? `Analysing: ${plural(listing.document.left, "trace")} to go` : "");
    if (!listing.document.left) return listing.document;
  }
}

async function loadComparison(newest) {
  for (;;) {
    const found = await get(newest ? `comparison?newest_s=${newest}` : "comparison");
    if (!found.left) return found;
    say(`Analysing: ${plural(found.left, "trace")} to go`);
  }
}

function say(text) {
  if (byId("status").textContent !== text) byId("status").textContent = text;
}
