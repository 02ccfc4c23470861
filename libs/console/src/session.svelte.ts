/** The caller: the token of this tab, and what the gateway says about its holder. */
import { Http, Refused, type Schemas } from "./api/http";

const KEY = "stretto.token";

/** Not a cookie: cookies of 127.0.0.1 go to every port of the machine, with an admin's token in them. */
function stored(): string {
  const token = handed();
  if (token) {
    sessionStorage.setItem(KEY, token);
    history.replaceState(null, "", location.pathname + location.search);
  }
  return sessionStorage.getItem(KEY) ?? "";
}

/** The token in the address, by which `stretto console` signs a browser in; it is sent to nobody. */
function handed(): string {
  return decodeURIComponent(/^#token=(.+)$/.exec(location.hash)?.[1] ?? "");
}

const ORDER = ["viewer", "submitter", "admin"];

class Session {
  token = $state(stored());
  me = $state<Schemas["Me"]>();
  login = $state<Schemas["Login"]>();
  refused = $state("");
  readonly http = new Http(
    () => this.token,
    () => this.end("The token is not accepted, or not any more."),
  );

  /** Ask who we are. Leaves `me` undefined if the gateway wants a token. */
  async begin(): Promise<void> {
    try {
      this.me = await this.http.get<Schemas["Me"]>("/me");
      this.refused = "";
    } catch (error) {
      if (!(error instanceof Refused) || error.status !== 401) throw error;
    }
  }

  async enter(token: string): Promise<void> {
    this.token = token.trim();
    sessionStorage.setItem(KEY, this.token);
    this.refused = "";
    await this.begin();
  }

  end(why = ""): void {
    if (this.me || this.token) this.refused = why;
    this.token = "";
    this.me = undefined;
    sessionStorage.removeItem(KEY);
    void this.http
      .get<Schemas["Login"]>("/login")
      .then((login) => (this.login = login))
      .catch(() => undefined);
  }

  /** True if the role of the caller is at least `role`. */
  may(role: "submitter" | "admin"): boolean {
    return this.me !== undefined && ORDER.indexOf(this.me.role) >= ORDER.indexOf(role);
  }
}

export const session = new Session();

addEventListener("hashchange", () => {
  if (handed()) void session.enter(stored());
});
