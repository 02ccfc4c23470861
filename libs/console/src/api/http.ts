/** Requests to the gateway: bearer token, problems as errors, entity tags. */
import { noteDate } from "../clock";
import { GATEWAY } from "../route.svelte";
import type { components } from "./schema";

export type Schemas = components["schemas"];
export type Problem = Schemas["ProblemBody"];

const API = `${GATEWAY}/api/v1`;

/** The gateway refused a request. */
export class Refused extends Error {
  constructor(
    readonly status: number,
    readonly problem: Problem,
  ) {
    super(problem.detail || problem.title);
  }
}

/** The gateway did not answer. */
export class Unreachable extends Error {}

export type Params = Record<string, string | number | boolean | readonly string[] | undefined>;

/** Return the path of the API with its query. A list becomes a parameter that repeats; undefined is left out. */
export function url(path: string, params: Params = {}): string {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    if (value === undefined) continue;
    for (const one of Array.isArray(value) ? value : [value]) query.append(name, String(one));
  }
  const text = query.toString();
  return API + path + (text ? `?${text}` : "");
}

export class Http {
  constructor(
    private readonly token: () => string,
    private readonly onUnauthorised: (token: string) => void,
  ) {}

  /** Send a request. Throws Refused for a status of 400 or more, Unreachable without an answer. */
  async send(address: string, options: RequestInit = {}): Promise<Response> {
    const headers = new Headers(options.headers);
    const token = this.token();
    if (token) headers.set("Authorization", `Bearer ${token}`);
    let response: Response;
    try {
      response = await fetch(address, { ...options, headers, cache: "no-store" });
    } catch (error) {
      if (options.signal?.aborted) throw error;
      throw new Unreachable("the gateway does not answer");
    }
    noteDate(response.headers.get("Date"));
    if (response.status < 400) return response;
    if (response.status === 401) this.onUnauthorised(token);
    throw new Refused(response.status, await problemOf(response));
  }

  async get<T>(path: string, params: Params = {}): Promise<T> {
    return (await this.send(url(path, params))).json() as Promise<T>;
  }

  /** Get what changed since `tag`; undefined: nothing did. */
  async getChanged<T>(path: string, params: Params, tag: string): Promise<{ body: T; tag: string } | undefined> {
    const response = await this.send(url(path, params), tag ? { headers: { "If-None-Match": tag } } : {});
    if (response.status === 304) return undefined;
    return { body: (await response.json()) as T, tag: response.headers.get("ETag") ?? "" };
  }

  async post<T>(path: string, body: unknown, params: Params = {}): Promise<T> {
    const options = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
    return (await this.send(url(path, params), options)).json() as Promise<T>;
  }

  async delete(path: string): Promise<void> {
    await this.send(url(path), { method: "DELETE" });
  }
}

/** Return the cursor of the next page, from `Link: <…>; rel="next"`; empty from the last page. */
export function nextOf(response: Response): string {
  const next = /<([^>]*)>;\s*rel="next"/.exec(response.headers.get("Link") ?? "")?.[1];
  return next ? (new URL(next, location.href).searchParams.get("cursor") ?? "") : "";
}

async function problemOf(response: Response): Promise<Problem> {
  try {
    return (await response.json()) as Problem;
  } catch {
    return { title: response.statusText, status: response.status, detail: `status ${response.status}` } as Problem;
  }
}
