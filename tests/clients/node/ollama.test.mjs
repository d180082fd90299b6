// The ollama package for Node.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Ollama } from 'ollama'
import { CAPITAL, WEATHER, model, url } from './server.mjs'

const client = new Ollama({ host: url })
const asked = { model, options: { temperature: 0, num_predict: 60 }, messages: [{ role: 'user', content: CAPITAL }] }

test('a chat, whole and streamed', async () => {
  const whole = await client.chat(asked)
  assert.match(whole.message.content, /Paris/)
  let text = ''
  for await (const piece of await client.chat({ ...asked, stream: true })) text += piece.message.content
  assert.equal(text, whole.message.content)
})

test('a tool is called', async () => {
  const parameters = { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] }
  const tools = [{ type: 'function', function: { name: 'get_weather', description: 'Weather', parameters } }]
  const { message } = await client.chat({ ...asked, messages: [{ role: 'user', content: WEATHER }], tools })
  assert.deepEqual(message.tool_calls[0].function.arguments, { city: 'Paris' })
})

test('models and errors', async () => {
  const { models } = await client.list()
  assert.ok(models.some(({ name }) => name === `${model}:latest`))
  await assert.rejects(client.chat({ ...asked, model: 'absent' }), /model 'absent' not found/)
})
