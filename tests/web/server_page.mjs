// What a visitor of the page of `opweave deploy` sees: prints observations as JSON.
// Arguments: the address of the page, the path of Chromium, the paths of a picture and of an .npz file.
import { chromium } from "playwright-core";

const [url, executablePath, picture, archive] = process.argv.slice(2);
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu"] });

async function open(width, height, colorScheme = "light") {
  const page = await browser.newPage({ viewport: { width, height }, colorScheme });
  page.problems = [];
  page.on("pageerror", (error) => page.problems.push(String(error)));
  page.on("console", (message) => message.text().includes("Security Policy") && page.problems.push(message.text()));
  await page.goto(url);
  await page.locator("article").first().waitFor();
  return page;
}

const article = (page, title) => page.locator("article").filter({ has: page.getByRole("heading", { name: title, exact: true }) });

// Runs a model, and returns the text of its result or of its error.
async function run(root) {
  await root.locator("button[type=submit]").click();
  await root.locator(".result:not([hidden]), form + .error:not([hidden])").waitFor();
  const error = root.locator("form + .error");
  return (await error.isVisible()) ? `error: ${await error.textContent()}` : root.locator("pre").textContent();
}

// Elements whose right edge is beyond that of the page, and controls that are too small for a finger.
const faults = (page) => page.evaluate(() => {
  const isScrolled = (element) => element.closest(".drawing, pre, .talk");
  const boxes = [...document.querySelectorAll("body *")].filter((element) => element.checkVisibility());
  return {
    wide: boxes.filter((element) => !isScrolled(element) && element.getBoundingClientRect().right > innerWidth).map((element) => element.outerHTML.slice(0, 80)),
    small: boxes.filter((element) => element.matches("button, select, input:not([type=file])") && element.getBoundingClientRect().height < 28).map((element) => element.outerHTML.slice(0, 80)),
    size: document.documentElement.scrollWidth,
  };
});

const seen = { sizes: {} };
for (const [width, height, scheme] of [[1280, 900, "light"], [390, 844, "dark"]]) {
  const page = await open(width, height, scheme);
  seen.status = await page.getByRole("status").textContent();
  seen.titles = await page.locator("article h2").allTextContents();
  seen.contents = await page.locator("#contents a").allTextContents();

  const enlarge = article(page, "enlarge");
  seen.before = await enlarge.locator(".options").isVisible();
  await enlarge.locator("input[type=file]").setInputFiles(picture);
  seen.after = await enlarge.locator(".options label:visible").allTextContents();
  seen.enlarged = await run(enlarge);
  seen.captions = await enlarge.locator("figcaption").allTextContents();
  seen.corner = await enlarge.locator("canvas").evaluate((canvas) => [...canvas.getContext("2d").getImageData(0, 0, 1, 1).data]);
  await enlarge.locator("[name=mean]").fill("1,2");
  seen.wrongOption = await run(enlarge);
  await enlarge.getByText("Without the file").click();
  seen.zeros = await run(enlarge);
  await enlarge.locator("summary").click();
  await enlarge.locator(".drawing img").waitFor();
  const image = enlarge.locator(".drawing img");
  seen.drawing = await image.evaluate((image) => image.complete && image.naturalWidth > 0);

  const two = article(page, "two");
  seen.accepts = await Promise.all([enlarge, two].map((root) => root.locator("input[type=file]").getAttribute("accept")));
  await two.locator("input[type=file]").setInputFiles(archive);
  seen.two = await run(two);
  seen.texts = await run(article(page, "texts"));
  seen.large = await run(article(page, "large"));

  const chat = article(page, "tiny");
  await chat.getByLabel("Message").fill("hi <b>you</b>");
  await chat.getByLabel("Message").press("Enter");
  await chat.getByText("New conversation").waitFor();
  seen.talk = await chat.locator(".talk p").allTextContents();
  await chat.getByLabel("Message").fill("x".repeat(400));
  await chat.getByText("Send").click();
  await chat.locator(".error:not([hidden])").waitFor();
  seen.tooLong = await chat.locator(".error").textContent();
  seen.kept = [(await chat.getByLabel("Message").inputValue()).length, await chat.locator(".talk p").count()];
  await chat.getByText("New conversation").click();
  seen.emptied = await chat.locator(".talk p").count();

  seen.sizes[width] = { ...(await faults(page)), problems: page.problems };
  await page.close();
}
console.log(JSON.stringify(seen));
await browser.close();
