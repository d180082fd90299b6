// The official OpenAI SDK for Node.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import OpenAI from 'openai'
import { zodResponseFormat } from 'openai/helpers/zod'
import { z } from 'zod'
import { CAPITAL, PERSON, WEATHER, model, url } from './server.mjs'

const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'unused', maxRetries: 0 })
const messages = [{ role: 'user', content: CAPITAL }]
const parameters = { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] }
const tools = [{ type: 'function', function: { name: 'get_weather', parameters } }]

test('a chat, whole and streamed', async () => {
  const whole = await client.chat.completions.create({ model, messages, temperature: 0 })
  assert.match(whole.choices[0].message.content, /Paris/)
  const stream = await client.chat.completions.create({
    model, messages, temperature: 0, stream: true, stream_options: { include_usage: true },
  })
  let text = ''
  let usage
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta.content ?? ''
    usage = chunk.usage
  }
  assert.equal(text, whole.choices[0].message.content)
  assert.equal(usage.total_tokens, whole.usage.total_tokens)
})

test('log-probabilities and choices, streamed, are the whole answer', async () => {
  const asked = { model, messages, temperature: 0, seed: 1, n: 2, logprobs: true, top_logprobs: 2 }
  const whole = await client.chat.completions.create(asked)
  const streamed = await client.chat.completions.stream(asked).finalChatCompletion()
  assert.equal(whole.choices.length, 2)
  for (const choice of whole.choices) {
    const same = streamed.choices.find(({ index }) => index === choice.index)
    assert.equal(same.message.content, choice.message.content)
    assert.equal(same.finish_reason, choice.finish_reason)
    const logprobs = same.logprobs.content
    assert.deepEqual(logprobs.map(({ token }) => token), choice.logprobs.content.map(({ token }) => token))
    choice.logprobs.content.forEach(({ logprob, top_logprobs }, place) => {
      assert.ok(Math.abs(logprobs[place].logprob - logprob) < 1e-3) // the last bits depend on the batch
      assert.equal(logprobs[place].top_logprobs.length, top_logprobs.length)
    })
  }
})

test('a tool is called, and its result read', async () => {
  const asked = { model, tools, temperature: 0, messages: [{ role: 'user', content: WEATHER }] }
  const whole = await client.chat.completions.create(asked)
  const [call] = whole.choices[0].message.tool_calls
  assert.deepEqual(JSON.parse(call.function.arguments), { city: 'Paris' })
  const streamed = await client.chat.completions.stream(asked).finalMessage()
  assert.equal(streamed.tool_calls[0].function.arguments, call.function.arguments)

  const cities = []
  const get_weather = {
    name: 'get_weather', parameters, parse: JSON.parse,
    function: ({ city }) => { cities.push(city); return '20 degrees, sunny' },
  }
  const runner = client.chat.completions.runTools({ ...asked, tools: [{ type: 'function', function: get_weather }] })
  assert.match(await runner.finalContent(), /Paris/)
  assert.deepEqual(cities, ['Paris'])
})

test('an answer is parsed', async () => {
  const Person = z.object({ name: z.string(), age: z.number() })
  const answer = await client.chat.completions.parse({
    model, temperature: 0, messages: [{ role: 'user', content: PERSON }],
    response_format: zodResponseFormat(Person, 'person'),
  })
  assert.deepEqual(answer.choices[0].message.parsed, { name: 'Anna', age: 7 })
})

test('a completion, whole and streamed', async () => {
  const asked = { model, prompt: 'The capital of France is', max_tokens: 12, temperature: 0 }
  const whole = await client.completions.create(asked)
  assert.match(whole.choices[0].text, /Paris/)
  let text = ''
  for await (const chunk of await client.completions.create({ ...asked, stream: true })) text += chunk.choices[0].text
  assert.equal(text, whole.choices[0].text)
})

test('embeddings, packed and plain', async () => {
  const input = ['The weather in Paris is sunny.', '1 + 1 = 2']
  const packed = await client.embeddings.create({ model, input }) // base64 on the wire
  const plain = await client.embeddings.create({ model, input, encoding_format: 'float' })
  assert.equal(packed.data.length, 2)
  packed.data.forEach(({ embedding }, place) => {
    assert.equal(embedding.length, plain.data[place].embedding.length)
    embedding.forEach((value, at) => assert.ok(Math.abs(value - plain.data[place].embedding[at]) < 1e-5))
  })
})

test('a response, whole and streamed, with a tool', async () => {
  const whole = await client.responses.create({ model, input: CAPITAL, temperature: 0 })
  assert.match(whole.output_text, /Paris/)
  const stream = client.responses.stream({ model, input: CAPITAL, temperature: 0 })
  let text = ''
  for await (const event of stream) if (event.type === 'response.output_text.delta') text += event.delta
  assert.equal(text, whole.output_text)
  assert.equal((await stream.finalResponse()).output_text, whole.output_text)

  const flat = [{ type: 'function', name: 'get_weather', parameters, strict: false }]
  const called = await client.responses.create({ model, input: WEATHER, tools: flat, temperature: 0 })
  assert.deepEqual(JSON.parse(called.output[0].arguments), { city: 'Paris' })
})

test('errors are the SDK\'s own', async () => {
  await assert.rejects(client.chat.completions.create({ model: 'absent', messages }), OpenAI.NotFoundError)
  await assert.rejects(
    client.chat.completions.create({ model, messages, temperature: 3, stream: true }),
    (error) => error instanceof OpenAI.BadRequestError && error.param === 'temperature',
  )
})
