// The dashboard in a real browser, served by the real server, talking to a real model.
//
//   HEADSTART_BIN        the server (required)
//   HEADSTART_MODEL_DIR  folder with at least one model (required)
//   CHROMIUM             the browser, default /usr/bin/chromium
//   SCREENSHOTS          folder for pictures, default none
import assert from 'node:assert/strict'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, afterEach, before, test } from 'node:test'
import { chromium } from 'playwright-core'
import { startServer } from './server.mjs'

const { HEADSTART_BIN, HEADSTART_MODEL_DIR, SCREENSHOTS } = process.env
if (!HEADSTART_BIN || !HEADSTART_MODEL_DIR) throw new Error('set HEADSTART_BIN and HEADSTART_MODEL_DIR')
const KEY = 'e2e-key'
// A reply of a few tokens on a slow machine, and the first load of a model.
const REPLY = { timeout: 120_000 }

let browser
let context
let server
let emptyFolder

before(async () => {
  emptyFolder = await mkdtemp(join(tmpdir(), 'headstart-e2e-'))
  // Chromium refuses to run as root inside its sandbox.
  const args = process.getuid?.() === 0 ? ['--no-sandbox'] : []
  browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args })
})

afterEach(async () => {
  await context?.close()
  await server?.stop()
  context = server = undefined
})

after(async () => {
  await browser?.close()
  await rm(emptyFolder, { recursive: true, force: true })
})

/** Opens the dashboard. `problems` collects what the page complains about and requests that leave the server. */
async function open(options = {}) {
  context = await browser.newContext({ viewport: { width: 900, height: 700 }, ...options })
  context.setDefaultTimeout(60_000)
  const page = await context.newPage()
  const problems = []
  page.on('pageerror', (error) => problems.push(String(error)))
  // A refused request is logged by the browser too; the page shows it, so it is not a problem of its own.
  page.on('console', (m) => m.type() === 'error' && !m.text().startsWith('Failed to load resource') && problems.push(m.text()))
  page.on('request', (request) => {
    if (!request.url().startsWith(`${server.url}/`)) problems.push(`left the server: ${request.url()}`)
  })
  // Keeps the last streamed body. Playwright's own view of it is decoded as Latin-1.
  await page.addInitScript(() => {
    const { fetch } = globalThis
    globalThis.fetch = async (...request) => {
      const response = await fetch(...request)
      if (response.url.endsWith('/chat/completions')) {
        // An aborted reply is cut off in the copy too.
        globalThis.lastReply = response.clone().text().catch(() => '')
      }
      return response
    }
  })
  // The page leaves sampling to the model's defaults. Here every run is to say the same, and not for ever.
  await page.route('**/v1/chat/completions', (route) => {
    const body = { ...route.request().postDataJSON(), temperature: 0, max_tokens: 400 }
    return route.continue({ postData: JSON.stringify(body) })
  })
  await page.goto(server.url)
  return { page, problems }
}

async function picture(page, name) {
  if (SCREENSHOTS) await page.screenshot({ path: join(SCREENSHOTS, `${name}.png`) })
}

/** The reply inside a streamed body. Not read with the page's own parser, which is what is tested. */
function textOf(body) {
  const chunks = [...body.matchAll(/^data: (\{.*)$/gm)].map((match) => JSON.parse(match[1]))
  return chunks.map((chunk) => chunk.choices[0]?.delta.content ?? '').join('')
}

const withModel = (...args) => startServer(HEADSTART_BIN, ['--model-dir', HEADSTART_MODEL_DIR, ...args])

test('shows the server, its endpoint and its models, and chats', async () => {
  server = await withModel()
  const { page, problems } = await open()
  await page.getByTestId('status').filter({ hasText: 'Running' }).waitFor()
  assert.equal(await page.getByTestId('endpoint').inputValue(), `${server.url}/v1`)
  const listed = await (await fetch(`${server.url}/v1/models`)).json()
  await page.getByTestId('model').first().waitFor()
  assert.ok(listed.data.length > 0, `no model in ${HEADSTART_MODEL_DIR}`)
  assert.equal(await page.getByTestId('model').count(), listed.data.length)
  assert.match(await page.getByTestId('model').first().innerText(), new RegExp(listed.data[0].id.replace(/\W/g, '\\$&')))
  await picture(page, 'dashboard-900')

  await page.getByText('System prompt').click()
  await page.getByTestId('system').fill('You are a helpful assistant.')
  await page.getByText('System prompt').click()
  // By keyboard: Enter sends.
  await page.getByTestId('prompt').fill('What is the capital of France?')
  await page.getByTestId('prompt').press('Enter')
  const facts = page.getByTestId('facts')
  await facts.waitFor(REPLY)
  const sent = textOf(await page.evaluate(() => globalThis.lastReply))
  assert.match(sent, /Paris/)
  assert.equal(await page.getByTestId('reply').textContent(), sent)
  assert.match(await facts.innerText(), /first token \d.* · [\d.]+ tok\/s · \d+ tokens? · prompt \d+ tokens/)
  assert.equal(await page.getByTestId('prompt').inputValue(), '')
  await picture(page, 'chat-900')
  assert.deepEqual(problems, [])
})

test('stops a reply midway and stays usable', async () => {
  server = await withModel()
  const { page, problems } = await open({ viewport: { width: 1600, height: 1000 }, colorScheme: 'dark' })
  // The story must not end by itself before it is stopped.
  const endless = (route) => {
    const body = { ...route.request().postDataJSON(), ignore_eos: true }
    return route.continue({ postData: JSON.stringify(body) })
  }
  await page.route('**/v1/chat/completions', endless, { times: 1 })
  await page.getByTestId('prompt').fill('Write a very long story about a lighthouse, with many chapters.')
  await page.getByTestId('send').click()
  await page.getByTestId('reply').waitFor(REPLY)
  await page.getByTestId('stop').click()
  await page.getByTestId('facts').filter({ hasText: 'stopped' }).waitFor()
  const text = await page.getByTestId('reply').innerText()
  assert.notEqual(text, '')
  await page.getByText('System prompt').click()
  await page.getByTestId('system').fill('You answer in one short sentence.')
  await page.getByTestId('prompt').fill('What is the capital of France?')
  await page.getByTestId('send').click()
  await page.getByTestId('facts').nth(1).waitFor(REPLY)
  assert.equal(await page.getByTestId('reply').first().innerText(), text, 'nothing is added after a stop')
  await picture(page, 'chat-1600-dark')
  assert.deepEqual(problems, [])
})

test('says why a model cannot be used', async () => {
  await writeFile(join(emptyFolder, 'broken.gguf'), 'this is no model')
  server = await startServer(HEADSTART_BIN, ['--model-dir', emptyFolder])
  const { page, problems } = await open()
  await page.getByText('1 cannot be used').click()
  const [{ id, reason }] = (await (await fetch(`${server.url}/v1/models`)).json()).unavailable
  const shown = await page.getByTestId('unavailable').innerText()
  assert.ok(shown.includes(id) && shown.includes(reason), shown)
  await picture(page, 'unavailable-900')
  await rm(join(emptyFolder, 'broken.gguf'))
  assert.deepEqual(problems, [])
})

test('says what to do when there is no model', async () => {
  server = await startServer(HEADSTART_BIN, ['--model-dir', emptyFolder])
  const { page, problems } = await open()
  const empty = page.getByTestId('empty')
  await empty.waitFor()
  assert.match(await empty.innerText(), /make starter/)
  assert.ok((await empty.innerText()).includes(emptyFolder), 'the model folder is named')
  await picture(page, 'empty-900')
  assert.deepEqual(problems, [])
})

test('asks for the API key and uses it', async () => {
  server = await withModel('--api-key', KEY)
  const { page, problems } = await open()
  await page.getByLabel('API key').fill('wrong')
  await page.getByLabel('API key').press('Enter')
  await page.getByText('did not accept this key').waitFor()
  await picture(page, 'key-900')
  await page.getByLabel('API key').fill(KEY)
  await page.getByLabel('API key').press('Enter')
  await page.getByTestId('model').first().waitFor()
  assert.equal(await page.getByLabel('API key').count(), 0)
  await page.reload()
  await page.getByTestId('model').first().waitFor()
  assert.deepEqual(problems, [])
})

test('notices when the server goes away', async () => {
  server = await withModel()
  const { page } = await open()
  await page.getByTestId('model').first().waitFor()
  await server.stop()
  await page.getByTestId('status').filter({ hasText: 'Not reachable' }).waitFor()
  await page.getByTestId('prompt').fill('hello')
  await page.getByTestId('send').click()
  assert.match(await page.getByTestId('error').innerText(), /cannot be reached/)
})
