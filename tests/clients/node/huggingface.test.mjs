// huggingface.js: text generation and chats, with an endpoint's URL in place of a model.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { InferenceClient } from '@huggingface/inference'
import { CAPITAL, WEATHER, model, url } from './server.mjs'

const endpoint = new InferenceClient('unused').endpoint(url)
const messages = [{ role: 'user', content: CAPITAL }]
const inputs = 'The capital of France is'
const parameters = { max_new_tokens: 3, return_full_text: false }

test('text generation, whole and streamed', async () => {
  const whole = await endpoint.textGeneration({ inputs, parameters })
  assert.ok(whole.generated_text)
  let text = ''
  let last
  for await (const frame of endpoint.textGenerationStream({ inputs, parameters })) {
    text += frame.choices ? frame.choices[0].text : frame.token.text
    last = frame
  }
  assert.equal(text, whole.generated_text)
  assert.ok(last)
})

test('a chat, whole and streamed', async () => {
  const whole = await endpoint.chatCompletion({ messages, temperature: 0 })
  assert.match(whole.choices[0].message.content, /Paris/)
  assert.equal(whole.model, model)
  let text = ''
  let finish
  for await (const chunk of endpoint.chatCompletionStream({ messages, temperature: 0 })) {
    text += chunk.choices[0]?.delta.content ?? ''
    finish = chunk.choices[0]?.finish_reason ?? finish
  }
  assert.equal(text, whole.choices[0].message.content)
  assert.equal(finish, whole.choices[0].finish_reason)
})

test('a chat with a model and a base URL', async () => {
  const client = new InferenceClient('unused', { endpointUrl: url })
  const whole = await client.chatCompletion({ model, messages, temperature: 0 })
  assert.match(whole.choices[0].message.content, /Paris/)
})

test('a call', async () => {
  const parameters = { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] }
  const tools = [{ type: 'function', function: { name: 'get_weather', description: 'Tells the weather.', parameters } }]
  const asked = { messages: [{ role: 'user', content: WEATHER }], tools, tool_choice: 'auto', temperature: 0 }
  const whole = await endpoint.chatCompletion(asked)
  const [call] = whole.choices[0].message.tool_calls
  assert.equal(call.function.name, 'get_weather')
  assert.deepEqual(JSON.parse(call.function.arguments), { city: 'Paris' })
})

test('an error names what is wrong', async () => {
  const asked = endpoint.chatCompletion({ messages, temperature: -1 })
  await assert.rejects(asked, (error) => /temperature/.test(JSON.stringify(error.httpResponse?.body ?? error.message)))
})
