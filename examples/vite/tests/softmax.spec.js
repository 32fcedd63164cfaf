import { expect, test } from "@playwright/test";

test("the page computes on WebNN", async ({ page }) => {
  await page.goto("/");
  await expect(page.locator("#result")).toHaveText("0.032 0.087 0.237 0.644");
  await page.getByLabel("Numbers").fill("0, 0");
  await page.getByLabel("Numbers").press("Enter");
  await expect(page.locator("#result")).toHaveText("0.500 0.500");
  await expect(page.locator("#error")).toBeEmpty();
});
