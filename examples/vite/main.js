import { softmax } from "./softmax.js";

const [numbers, result, error] = ["numbers", "result", "error"].map((id) => document.getElementById(id));

async function show() {
  error.textContent = result.value = "";
  try {
    const values = Float32Array.from(numbers.value.split(","), Number);
    result.value = Array.from(await softmax(values), (value) => value.toFixed(3)).join(" ");
  } catch (reason) {
    error.textContent = reason.message;
  }
}

numbers.addEventListener("change", show);
show();
