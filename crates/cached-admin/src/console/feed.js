// Asks the server: one request at a time for each path, with a limit of time, and the token if one is known.

const TOKEN = "cached-admin-token";
const PATIENCE_MS = 6000;

export const token = () => sessionStorage.getItem(TOKEN);

export function setToken(value) {
  // What a header cannot carry is no part of a token.
  if (value) sessionStorage.setItem(TOKEN, value.replace(/[^!-~]/g, "?"));
  else sessionStorage.removeItem(TOKEN);
}

// Resolves to {ok: document}, {refused: true} for want of a token, {denied: "why"}, {absent: true} or {away: "why"}.
export async function ask(path) {
  const headers = { Accept: "application/json" };
  if (token()) headers.Authorization = `Bearer ${token()}`;
  try {
    const signal = AbortSignal.timeout(PATIENCE_MS);
    const answer = await fetch(path, { headers, signal, cache: "no-store", redirect: "error", credentials: "omit" });
    if (answer.status === 401) return { refused: true };
    if (answer.status === 403) return { denied: (await answer.text()).split("\n")[0].slice(0, 200) };
    if (answer.status === 404) return { absent: true };
    if (!answer.ok) return { away: `it answers with status ${answer.status}` };
    return { ok: await answer.json() };
  } catch (error) {
    const late = error.name === "TimeoutError";
    return { away: late ? `no answer in ${PATIENCE_MS / 1000} s` : error instanceof SyntaxError ? "the answer is not JSON" : "the connection fails" };
  }
}
