/* Typesets the formulas of a page. Where no script runs they stay readable as plain text. */
const macros = {
  "\\E": "\\operatorname{\\mathbb{E}}",
  "\\P": "\\mathbb{P}",
  // Characters that KaTeX does not know, or takes for something else.
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
  const displayMode = element.tagName === "DIV"
  // KaTeX takes y with an accent, but not ŷ as one character.
  const formula = element.textContent.trim().replace(/\p{L}/gu, (letter) => letter.normalize("NFD"))
  try {
    element.innerHTML = katex.renderToString(formula, { displayMode, macros: { ...macros }, strict: "error" })
  } catch (error) {
    element.title = error.message // and the formula stays as it is written
    continue
  }
  if (displayMode) continue
  // No line ends between a formula and the comma behind it: the last part of the formula goes with the comma.
  const held = document.createElement("span")
  held.style.whiteSpace = "nowrap"
  const parts = element.querySelector(".katex-html")
  held.append(parts.lastElementChild)
  parts.append(held)
}
