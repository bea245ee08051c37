// Numbers as the dashboard shows them. No Intl: WebKitGTK under LANG=C reports a language that Intl rejects.

/** `0.31 s`, `12.4 s`, `84 ms`. */
export function seconds(value: number): string {
  if (value < 0.1) return `${Math.round(value * 1000)} ms`
  return `${value.toFixed(value < 10 ? 2 : 1)} s`
}

/** `42.1 tok/s`. */
export function speed(tokensPerSecond: number): string {
  return `${tokensPerSecond.toFixed(tokensPerSecond < 100 ? 1 : 0)} tok/s`
}

/** `1 token`, `128 tokens`. */
export function tokens(count: number): string {
  return `${count} ${count === 1 ? 'token' : 'tokens'}`
}
