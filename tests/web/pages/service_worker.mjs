// What a service worker answers, which has `navigator.ml`: the sum of two tensors, or why there is none.
const {script} = JSON.parse(document.getElementById("task").textContent);
const registration = await navigator.serviceWorker.register(script);
const worker = registration.installing ?? registration.active;
while (worker.state !== "activated") await new Promise(resolve => (worker.onstatechange = resolve));
const {port1, port2} = new MessageChannel();
port1.onmessage = async ({data}) => {
  await registration.unregister();
  report(data);
};
worker.postMessage("sum", [port2]);
