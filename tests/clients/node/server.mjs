// The gateway that the tests ask, as test_node.py started it.
export const url = process.env.INTERLINGUA_URL
export const model = process.env.INTERLINGUA_MODEL

export const CAPITAL = 'What is the capital of France?'
export const WEATHER = 'What is the weather in Paris?'
export const PERSON = 'Give me JSON with name Anna and age 7.'
