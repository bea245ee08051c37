// Starts `headstart serve` for a test and stops it again. The server sees nobody's own settings and models.
import { spawn } from 'node:child_process'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'

const READY = /Headstart is ready at (http:\/\/127\.0\.0\.1:\d+)/

/**
 * @param {string} binary path of the server
 * @param {string[]} args what comes after `serve --port 0`
 * @returns {Promise<{ url: string, stop: () => Promise<void>, log: () => string }>}
 */
export async function startServer(binary, args) {
  const home = await mkdtemp(join(tmpdir(), 'headstart-home-'))
  const env = { ...process.env, HOME: home, XDG_DATA_HOME: home, XDG_CONFIG_HOME: home, XDG_CACHE_HOME: home }
  delete env.HEADSTART_API_KEY
  delete env.HEADSTART_SETTINGS
  const child = spawn(binary, ['serve', '--port', '0', '--exit-with-stdin', ...args], { stdio: 'pipe', env })
  let log = ''
  const exited = new Promise((resolve) => {
    child.once('error', (error) => resolve((log += `${error}\n`)))
    child.once('close', resolve)
  })
  const stop = async () => {
    if (child.exitCode === null && child.signalCode === null) child.kill('SIGTERM')
    await exited
    await rm(home, { recursive: true, force: true })
  }
  let timer
  const url = await new Promise((resolve) => {
    for (const stream of [child.stdout, child.stderr]) {
      createInterface({ input: stream }).on('line', (line) => {
        log += `${line}\n`
        const match = READY.exec(line)
        if (match) resolve(match[1])
      })
    }
    timer = setTimeout(() => resolve(undefined), 60_000)
    exited.then(() => resolve(undefined))
  })
  clearTimeout(timer)
  if (url === undefined) {
    await stop()
    throw new Error(`the server did not get ready:\n${log}`)
  }
  return { url, stop, log: () => log }
}
