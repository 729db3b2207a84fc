/* Typesets the formulas of a page. Without this script they stay readable as plain text. */
const macros = {
  "\\E": "\\operatorname{\\mathbb{E}}",
  "\\P": "\\operatorname{\\mathbb{P}}",
  // Characters of our formulas that KaTeX does not know, or takes for something else.
  "·": "\\cdot",
  "‖": "\\Vert",
  "½": "\\tfrac{1}{2}",
  "¼": "\\tfrac{1}{4}",
  "′": "'",
  "″": "''",
  "∅": "\\varnothing",
  "⊤": "\\top",
  "𝟙": "\\mathbf{1}",
}
for (const name of ["range", "Var", "Cov", "KL", "Ext", "tail"]) macros[`\\${name}`] = `\\operatorname{${name}}`

for (const element of document.querySelectorAll(".arithmatex")) {
  // KaTeX knows ŷ as y with an accent, and not as one character.
  const formula = element.textContent.trim().replace(/\p{L}/gu, (letter) => letter.normalize("NFD"))
  const displayMode = element.tagName === "DIV"
  katex.render(formula, element, { displayMode, macros: { ...macros }, strict: "error", throwOnError: false })
}
