// The official Anthropic SDK for Node.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import Anthropic from '@anthropic-ai/sdk'
import { CAPITAL, WEATHER, model, url } from './server.mjs'

const client = new Anthropic({ baseURL: url, apiKey: 'unused', maxRetries: 0 })
const asked = { model, max_tokens: 60, temperature: 0, messages: [{ role: 'user', content: CAPITAL }] }

test('a message, whole and streamed', async () => {
  const whole = await client.messages.create(asked)
  assert.match(whole.content[0].text, /Paris/)
  const stream = client.messages.stream(asked)
  let text = ''
  stream.on('text', (piece) => { text += piece })
  const streamed = await stream.finalMessage()
  assert.equal(text, whole.content[0].text)
  assert.deepEqual(streamed.content, whole.content)
  assert.equal(streamed.usage.output_tokens, whole.usage.output_tokens)
  assert.equal(streamed.stop_reason, whole.stop_reason)
})

test('a tool is called, and its result read', async () => {
  const input_schema = { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] }
  const question = { ...asked, tools: [{ name: 'get_weather', input_schema }] }
  question.messages = [{ role: 'user', content: WEATHER }]
  const whole = await client.messages.create(question)
  const [call] = whole.content
  assert.deepEqual([whole.stop_reason, call.name, call.input], ['tool_use', 'get_weather', { city: 'Paris' }])
  const streamed = await client.messages.stream(question).finalMessage()
  assert.deepEqual(streamed.content.map(({ input }) => input), [call.input])

  const result = { type: 'tool_result', tool_use_id: call.id, content: '20 degrees, sunny' }
  question.messages.push({ role: 'assistant', content: whole.content }, { role: 'user', content: [result] })
  const answer = await client.messages.create(question)
  assert.match(answer.content[0].text, /Paris/)
})

test('errors are the SDK\'s own', async () => {
  await assert.rejects(client.messages.create({ ...asked, model: 'absent' }), Anthropic.NotFoundError)
})
