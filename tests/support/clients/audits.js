// Holds a server against the audits of graphql-http: node audits.js URL
import { serverAudits } from "graphql-http";

const results = [];
for (const audit of serverAudits({ url: process.argv[2] })) {
  const { status, reason = "" } = await audit.fn();
  results.push({ id: audit.id, name: audit.name, status, reason });
}
console.log(JSON.stringify(results));
