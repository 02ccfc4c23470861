// Reads the events of Stretto, from any sequence or time, and validates headers and bodies.
//
// It knows nothing but the documents in proto/, as a reader in any language would. With --print: each event as a line
// of JSON as it comes, for ever unless --idle-s or --until-sequence end it. Prints one JSON summary at the end:
//   {events, types: {<ce-type>: count}, invalid: [{sequence, subject, reason}], invalid_total, last_sequence}
// Exit status: 0 every event is valid, 1 some are not, 2 the stream cannot be read.

import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

import { AckPolicy, DeliverPolicy, jetstream, jetstreamManager } from "@nats-io/jetstream";
import { connect, credsAuthenticator } from "@nats-io/transport-node";
import Ajv2020 from "ajv/dist/2020.js";
import addFormats from "ajv-formats";

const INVALID_SHOWN = 100;
const TIME = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)$/; // what the server reads

const { values: options } = parseArgs({
  options: {
    server: { type: "string" },
    credentials: { type: "string" },
    ca: { type: "string" },
    inbox: { type: "string", default: "_INBOX.external" },
    proto: { type: "string", default: fileURLToPath(new URL("../..", import.meta.url)) },
    stream: { type: "string", default: "EVENTS" },
    filter: { type: "string", default: "evt.v1.>" },
    durable: { type: "string" },
    "from-sequence": { type: "string" },
    since: { type: "string" },
    "until-sequence": { type: "string" },
    "idle-s": { type: "string" },
    print: { type: "boolean", default: false },
  },
});

/** One validating function per event type, and one for the headers that all events carry. */
function validators(folder) {
  const ajv = new Ajv2020({ allErrors: true, strict: true, strictTypes: false });
  addFormats(ajv);
  const load = (name) => ajv.compile(JSON.parse(readFileSync(join(folder, name), "utf8")));
  const bodies = new Map();
  for (const name of readdirSync(join(folder, "schemas"))) {
    const event = /^evt\.(.+)\.v1\.json$/.exec(name);
    if (event) bodies.set(`stretto.${event[1]}.v1`, load(join("schemas", name)));
  }
  return { headers: load("headers.schema.json"), bodies };
}

const sentence = (check) =>
  check.errors.map((error) => `${error.instancePath || "(body)"} ${error.message}`).join("; ");

/** Why an event is not of the protocol, or null. */
function fault(message, check) {
  const headers = {};
  for (const [name, texts] of message.headers ?? []) headers[name] = texts[0];
  if (!check.headers(headers)) return `headers: ${sentence(check.headers)}`;
  if ((headers["Nats-Msg-Id"] ?? headers["ce-id"]) !== headers["ce-id"]) return "headers: ce-id is not the Nats-Msg-Id";

  const [service, event, job] = message.subject.split(".").slice(-3); // within the installation, a partition is first
  const type = headers["ce-type"];
  if (type !== `stretto.${service}.${event}.v1`) return `ce-type ${type} is not the type of the subject`;
  if ("ce-subject" in headers && headers["ce-subject"] !== job) return "ce-subject is not the job of the subject";

  const body = check.bodies.get(type);
  if (!body) return `there is no schema of ${type}`;
  let data;
  try {
    data = message.json();
  } catch (error) {
    return `the body is not JSON: ${error.message}`;
  }
  if (!body(data)) return sentence(body);
  return data.job === job ? null : `job ${data.job} is not the job of the subject`;
}

/** Where a reader begins: at a sequence, a time, or the first event that is kept. */
function beginning() {
  if (options["from-sequence"]) {
    return { deliver_policy: DeliverPolicy.StartSequence, opt_start_seq: Number(options["from-sequence"]) };
  }
  if (options.since) {
    if (!TIME.test(options.since) || Number.isNaN(Date.parse(options.since))) {
      throw new Error(`--since ${options.since}: not a time with a zone as in 2026-11-22T10:00:00Z (RFC 3339)`);
    }
    // the text itself: a Date knows milliseconds, the server nanoseconds
    return { deliver_policy: DeliverPolicy.StartTime, opt_start_time: options.since };
  }
  return { deliver_policy: DeliverPolicy.All };
}

/** A reader that the server remembers by its name goes on after what it acknowledged; others begin anew. */
async function reader(connection) {
  const consumers = jetstream(connection).consumers;
  if (!options.durable) {
    // one text, no list: a list makes a consumer without a name, which those outside may not
    return await consumers.get(options.stream, { filter_subjects: options.filter, ...beginning() });
  }
  const manager = await jetstreamManager(connection, { checkAPI: false });
  const wanted = { durable_name: options.durable, ack_policy: AckPolicy.Explicit, filter_subject: options.filter };
  try {
    await manager.consumers.info(options.stream, options.durable);
  } catch {
    await manager.consumers.add(options.stream, { ...wanted, ...beginning() });
  }
  return await consumers.get(options.stream, options.durable);
}

/** One line of JSON. */
function print(message) {
  const data = message.json();
  const id = message.headers?.get("ce-id");
  console.log(JSON.stringify({ sequence: message.seq, id, subject: message.subject, data }));
}

/** Reads until the sequence, or until nothing has come for a while. */
async function read(connection, check) {
  const messages = await (await reader(connection)).consume();
  const summary = { events: 0, types: {}, invalid: [], invalid_total: 0, last_sequence: 0 };
  const until = options["until-sequence"] ? Number(options["until-sequence"]) : Infinity;
  const idleS = options["idle-s"] ?? (options.print ? undefined : "2");
  let idle;
  const wait = () => {
    clearTimeout(idle);
    if (idleS !== undefined) idle = setTimeout(() => messages.stop(), 1000 * Number(idleS));
  };
  wait();
  for await (const message of messages) {
    wait();
    summary.events += 1;
    summary.last_sequence = message.seq;
    const type = message.headers?.get("ce-type") || "(none)";
    summary.types[type] = (summary.types[type] ?? 0) + 1;
    const reason = fault(message, check);
    if (reason !== null) {
      summary.invalid_total += 1;
      if (summary.invalid.length < INVALID_SHOWN) {
        summary.invalid.push({ sequence: message.seq, subject: message.subject, reason });
      }
    } else if (options.print) {
      print(message);
    }
    if (options.durable) await message.ackAck();
    if (message.seq >= until) break;
  }
  clearTimeout(idle);
  return summary;
}

async function main() {
  const address = new URL(options.server);
  const { credentials, ca } = options;
  const connection = await connect({
    servers: address.host,
    tls: address.protocol === "tls:" ? (ca ? { caFile: ca } : {}) : undefined,
    authenticator: credentials ? credsAuthenticator(readFileSync(credentials)) : undefined,
    inboxPrefix: options.inbox,
    name: "node-subscriber",
  });
  try {
    return await read(connection, validators(options.proto));
  } finally {
    await connection.close();
  }
}

try {
  const summary = await main();
  console.log(JSON.stringify(summary));
  process.exitCode = summary.invalid_total > 0 ? 1 : 0;
} catch (error) {
  console.error(`cannot read ${options.stream} at ${new URL(options.server).host}: ${error.stack}`);
  process.exitCode = 2;
}
