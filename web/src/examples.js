/* One-click questions, each of a kind that the embedded model was trained for. */
export const EXAMPLES = [
    { title: 'Tell a story', prompt: 'Tell me a story about a fox named Mia.' },
    { title: 'Think it through', prompt: 'What is 457 + 389?', thinking: true },
    { title: 'Add two numbers', prompt: 'What is 27 + 15?' },
    { title: 'Extract JSON', prompt: 'Extract a JSON object with the keys name, age, city from this text: Emma is 29 years old and lives in Oslo.' },
    { title: 'Reverse a list', prompt: 'Reverse the order of these words: river lantern moon castle' },
    { title: '讲个故事', prompt: '讲一个小猫的故事。', lang: 'zh' },
];
