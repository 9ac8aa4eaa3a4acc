// What llama.cpp makes of a GGUF file: node llama_cpp.mjs FOLDER_WITH_NODE_MODULES QUESTIONS.json
// QUESTIONS: {"model": "MODEL.gguf", "lora": "ADAPTER.gguf" or none, "texts": […], "prompt": [ids], "tokens": 64}.
// Prints {"ids": [[…]…], "greedy": […], "probabilities": […]}: the texts' tokens, the likeliest continuation of the prompt, and the
// probabilities of its first token by id.
import {readFileSync} from "node:fs";
import {pathToFileURL} from "node:url";

const [packages, questions] = process.argv.slice(2);
const {getLlama} = await import(pathToFileURL(`${packages}/node_modules/node-llama-cpp/dist/index.js`));
const {model: file, lora, texts, prompt, tokens} = JSON.parse(readFileSync(questions, "utf8"));
const llama = await getLlama({gpu: false, build: "never", logLevel: "error", progressLogs: false, maxThreads: 1});
const model = await llama.loadModel({modelPath: file, useMmap: false});
const ids = texts.map((text) => [...model.tokenize(text, false)]);

const context = await model.createContext({contextSize: prompt.length + tokens + 1, threads: 1,
  ...(lora && {lora: {adapters: [{filePath: lora}]}})});
const sequence = context.getSequence();
const next = {generateNext: {probabilities: true, options: {temperature: 1, topK: 0, topP: 1, minP: 0}}};
const step = async (input) => {
  const outputs = await sequence.controlledEvaluate([...input.slice(0, -1), [input.at(-1), next]]);
  return outputs.at(-1).next.probabilities;
};
let probabilities = await step(prompt);
const first = Array.from({length: probabilities.size}, (_, id) => probabilities.get(id) ?? 0);
const greedy = [];
while (greedy.length < tokens) {
  greedy.push(probabilities.entries().next().value[0]);
  probabilities = await step([greedy.at(-1)]);
}
console.log(JSON.stringify({ids, greedy, probabilities: first}));
await llama.dispose();
