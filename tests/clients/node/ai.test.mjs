// The Vercel AI SDK: OpenAI's provider over responses and over chats, and the one for compatible servers.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { createOpenAI } from '@ai-sdk/openai'
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { Output, embedMany, generateObject, generateText, stepCountIs, streamObject, streamText, tool } from 'ai'
import { z } from 'zod'
import { CAPITAL, PERSON, WEATHER, model as name, url } from './server.mjs'

const given = { baseURL: `${url}/v1`, apiKey: 'unused' }
const openai = createOpenAI(given)
const compatible = createOpenAICompatible({ ...given, name: 'interlingua', includeUsage: true, supportsStructuredOutputs: true })
const models = { responses: openai(name), chat: openai.chat(name), compatible: compatible(name) }
const schema = z.object({ name: z.string(), age: z.number().int() })

for (const [kind, model] of Object.entries(models)) {
  describe(kind, () => {
    const asked = { model, temperature: 0, maxRetries: 0 }

    test('a text, whole and streamed', async () => {
      const whole = await generateText({ ...asked, prompt: CAPITAL })
      assert.match(whole.text, /Paris/)
      assert.equal(whole.finishReason, 'stop')
      const stream = streamText({ ...asked, prompt: CAPITAL })
      let text = ''
      for await (const piece of stream.textStream) text += piece
      assert.equal(text, whole.text)
      assert.deepEqual((await stream.usage).outputTokens, whole.usage.outputTokens)
      assert.equal(await stream.finishReason, 'stop')
    })

    test('a tool is called, and its result read', async () => {
      const cities = []
      const get_weather = tool({
        inputSchema: z.object({ city: z.string() }),
        execute: ({ city }) => { cities.push(city); return '20 degrees, sunny' },
      })
      const question = { ...asked, prompt: WEATHER, tools: { get_weather }, stopWhen: stepCountIs(2) }
      const whole = await generateText(question)
      const stream = streamText(question)
      assert.match(whole.text, /Paris/)
      assert.equal(await stream.text, whole.text)
      assert.deepEqual(cities, ['Paris', 'Paris'])
    })

    test('a conversation continues', async () => { // the provider for responses sends earlier messages by id only
      const messages = [{ role: 'user', content: 'My name is Anna.' }]
      const first = await generateText({ ...asked, messages })
      messages.push(...first.response.messages, { role: 'user', content: 'What is my name?' })
      assert.equal((await generateText({ ...asked, messages })).text, 'Your name is Anna.')
    })

    test('an object, whole and streamed', async () => {
      const whole = await generateObject({ ...asked, schema, prompt: PERSON })
      assert.deepEqual(whole.object, { name: 'Anna', age: 7 })
      const stream = streamObject({ ...asked, schema, prompt: PERSON })
      let text = ''
      for await (const piece of stream.textStream) text += piece
      assert.deepEqual(JSON.parse(text), whole.object)
      assert.deepEqual(await stream.object, whole.object)
      const output = Output.object({ schema })
      assert.deepEqual((await generateText({ ...asked, output, prompt: PERSON })).output, whole.object)
    })
  })
}

test('a completion', async () => {
  for (const provider of [openai.completion(name), compatible.completionModel(name)]) {
    const asked = { model: provider, prompt: CAPITAL, temperature: 0, maxOutputTokens: 16, maxRetries: 0 }
    const whole = await generateText(asked)
    assert.equal(await streamText(asked).text, whole.text)
  }
})

test('embeddings', async () => {
  const values = ['The weather in Paris is sunny.', '1 + 1 = 2']
  for (const provider of [openai.embedding(name), compatible.embeddingModel(name)]) {
    const { embeddings } = await embedMany({ model: provider, values, maxRetries: 0 })
    assert.equal(embeddings.length, 2)
    assert.notDeepEqual(embeddings[0], embeddings[1])
  }
})
