/** The caller: the token of this tab, and what the gateway says about its holder. */
import { Http, Refused, type Schemas } from "./api/http";

const KEY = "stretto.token";

/** Not a cookie: cookies of 127.0.0.1 go to every port of the machine, with an admin's token in them. */
function initialToken(): string {
  const [token, present] = [tokenInAddress(), sessionStorage.getItem(KEY) ?? ""];
  if (token) history.replaceState(null, "", location.pathname + location.search);
  // anybody can make such a link: it must not put somebody else into a session unseen
  if (!token || token === present || (present && !confirm("Sign in with the token of this link instead?"))) return present;
  sessionStorage.setItem(KEY, token);
  return token;
}

/** The token in the address, by which `stretto console` signs a browser in; it is sent to nobody. */
function tokenInAddress(): string {
  try {
    return decodeURIComponent(/^#token=(.+)$/.exec(location.hash)?.[1] ?? "");
  } catch {
    return ""; // no token of ours
  }
}

/** Roles that may change something, each more than the one before. */
const CHANGING = ["submitter", "admin"];

class Session {
  token = $state(initialToken());
  me = $state<Schemas["Me"]>();
  login = $state<Schemas["Login"]>();
  refused = $state("");
  readonly http = new Http(
    () => this.token,
    (token) => token === this.token && this.end("The token is not accepted, or not any more."),
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
    return this.me !== undefined && CHANGING.indexOf(this.me.role) >= CHANGING.indexOf(role);
  }

  /** True if the caller may change a job of this submitter. */
  mayChange(submitter: string | undefined): boolean {
    return this.may("admin") || (this.may("submitter") && submitter === this.me?.name);
  }
}

export const session = new Session();

addEventListener("hashchange", () => {
  if (!tokenInAddress()) return;
  const token = initialToken();
  if (token !== session.token) void session.enter(token);
});
