// Asks the server: one request at a time for each path, with a limit of time, and the token if one is known. The token
// is sent in a header alone, which no other site can make a browser send.

const TOKEN = "cached-admin-token";
const PATIENCE_MS = 6000;
// The server responds to a change within 20 s: with its outcome, or with the number of a job that continues.
const CHANGE_MS = 30000;
const JOB_EVERY_MS = 1000;
const JOB_ASKS_MAX = 600;

export const token = () => sessionStorage.getItem(TOKEN);

export function setToken(value) {
  // What a header cannot carry is no part of a token.
  if (value) sessionStorage.setItem(TOKEN, value.replace(/[^!-~]/g, "?"));
  else sessionStorage.removeItem(TOKEN);
}

// Resolves to {ok: document}, {refused: true} for want of a token, {denied: "why"}, {absent: true} or {away: "why"}.
export async function ask(path) {
  try {
    const answer = await send(path, PATIENCE_MS);
    if (answer.status === 401) return { refused: true };
    if (answer.status === 403) return { denied: (await answer.text()).split("\n")[0].slice(0, 200) };
    if (answer.status === 404) return { absent: true };
    if (!answer.ok) return { away: `it answers with status ${answer.status}` };
    return { ok: await answer.json() };
  } catch (error) {
    return { away: error instanceof SyntaxError ? "the answer is not JSON" : failure(error, PATIENCE_MS) };
  }
}

// Sends a change. Resolves to null once it is done, or to the reason why it is not.
export async function post(path, body) {
  try {
    const answer = await send(path, CHANGE_MS, { method: "POST", body: JSON.stringify(body) });
    const text = await answer.text();
    const of = answer.headers.get("content-type") === "application/json" ? JSON.parse(text) : { error: text.split("\n")[0] };
    if (answer.status === 202) return await ended(of.job);
    if (!answer.ok) return of.error || `it answers with status ${answer.status}`;
    return of.done === false ? of.why : null;
  } catch (error) {
    return `${failure(error, CHANGE_MS)}; whether it was done is not known`;
  }
}

// Waits for the end of a change that takes long.
async function ended(job) {
  for (let asks = 0; asks < JOB_ASKS_MAX; asks += 1) {
    await new Promise((done) => setTimeout(done, JOB_EVERY_MS));
    const { ok: of, absent } = await ask(`volumes/job?id=${encodeURIComponent(job)}`);
    if (absent) return "its outcome is no longer known; the log has it";
    if (of && of.state !== "running") return of.state === "done" ? null : of.error;
  }
  return "it still goes on; the log reports its end";
}

const failure = (error, patience) => (error.name === "TimeoutError" ? `no answer in ${patience / 1000} s` : "the connection fails");

function send(path, patience, more) {
  const headers = { Accept: "application/json" };
  if (more) headers["Content-Type"] = "application/json";
  if (token()) headers.Authorization = `Bearer ${token()}`;
  return fetch(path, { headers, signal: AbortSignal.timeout(patience), cache: "no-store", redirect: "error", credentials: "omit", ...more });
}
