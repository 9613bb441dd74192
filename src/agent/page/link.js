// The token of the page's link, and requests that carry it.

// The link has the form `/#token=SECRET`. A browser does not send the fragment to a server. The token is removed from the
// address at once, so that it is neither in the history nor in a shared address. It is kept for this tab.
const TOKEN_PREFIX = "#token=";
const access = {
  token: undefined,
  read() {
    if (location.hash.startsWith(TOKEN_PREFIX)) {
      this.token = location.hash.slice(TOKEN_PREFIX.length);
      history.replaceState(history.state, "", location.pathname + location.search);
      try { sessionStorage.setItem("token", this.token); } catch { /* A reload needs the link again. */ }
    } else {
      try { this.token ??= sessionStorage.getItem("token") ?? undefined; } catch { /* The page has no token. */ }
    }
  },
};
access.read();

// Fetches a path of the agent.
function fetchFromAgent(path, signal) {
  const headers = access.token === undefined ? {} : { Authorization: `Bearer ${access.token}` };
  return fetch(path, { signal, headers, cache: "no-store", credentials: "omit" });
}

// The events of a path, as an `EventSource` reads them. An `EventSource` cannot send the token.
class EventStream {
  constructor(path, handlers, onEnd) {
    this.request = new AbortController();
    this.read(path, handlers).then(() => this.end(onEnd, {}), (error) => this.end(onEnd, { error }));
  }
  close() {
    this.closed = true;
    this.request.abort();
  }
  end(onEnd, { error }) {
    if (!this.closed) onEnd(error instanceof RefusedRequest ? error : undefined);
  }
  async read(path, handlers) {
    const answer = await fetchFromAgent(path, this.request.signal);
    if (!answer.ok) throw new RefusedRequest(answer.status, (await answer.text()).trim());
    const text = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let unread = "";
    for (;;) {
      const { value, done } = await text.read();
      if (done || this.closed) return;
      const events = (unread + value).split("\n\n");
      unread = events.pop();
      for (const event of events) {
        const lines = event.split("\n");
        const field = (name) => lines.filter((line) => line.startsWith(`${name}: `)).map((line) => line.slice(name.length + 2)).join("\n");
        handlers[field("event")]?.(JSON.parse(field("data")));
        if (this.closed) return;
      }
    }
  }
}

// The agent answers with an error.
class RefusedRequest extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}
