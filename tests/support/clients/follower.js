// Follows a subscription with graphql-ws, and writes a line for each message and each connection:
// node follower.js URL FIELD
import { createClient } from "graphql-ws";
import WebSocket from "ws";

const [url, field] = process.argv.slice(2);
const query = `subscription($after: String) { told: ${field}(after: $after) {
  operation data { tenant id value } cursor } }`;
// The client sends this object again whenever it has connected again.
const variables = { after: null };
const say = (what) => process.stdout.write(JSON.stringify(what) + "\n");

const client = createClient({
  url,
  webSocketImpl: WebSocket,
  retryAttempts: Infinity,
  retryWait: () => new Promise((resolve) => setTimeout(resolve, 100)),
  shouldRetry: () => true,
  on: {
    opened: () => say({ opened: true }),
    connected: () => say({ connected: true }),
    closed: ({ code }) => say({ closed: code }),
  },
});

// It ends with whoever started it.
process.stdin.resume().on("end", () => process.exit());

for (;;) {
  await new Promise((resolve) => {
    client.subscribe(
      { query, variables },
      {
        next: ({ data, errors }) => {
          if (errors) return say({ errors });
          say({ message: data.told });
          variables.after = data.told.cursor;
        },
        error: (error) => resolve(say({ error: String(error?.[0]?.message ?? error) })),
        complete: resolve,
      },
    );
  });
}
