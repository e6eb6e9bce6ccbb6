// The body of a function: texts of the page whose contrast to their ground is below 4.5 (WCAG AA).
const channel = (value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
const luminance = ([r, g, b]) => 0.2126 * channel(r / 255) + 0.7152 * channel(g / 255) + 0.0722 * channel(b / 255);
const colour = (text) => {
  const parts = text.match(/[\d.]+/g)?.map(Number) ?? [0, 0, 0, 0];
  return parts.length === 4 && parts[3] === 0 ? null : parts.slice(0, 3);
};
const ground = (node) => {
  const box = node.closest?.("g.entry")?.querySelector(".box");
  if (box) return colour(getComputedStyle(box).fill);
  for (let at = node; at; at = at.parentElement) {
    const found = colour(getComputedStyle(at).backgroundColor);
    if (found) return found;
  }
  return [255, 255, 255];
};
const faint = [];
const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
let count = 0;
while (texts.nextNode()) {
  const node = texts.currentNode.parentElement;
  const box = node.getBoundingClientRect();
  if (!texts.currentNode.data.trim() || box.width < 2 || !node.checkVisibility() || node.disabled) continue;
  if (["SCRIPT", "NOSCRIPT", "OPTION"].includes(node.tagName)) continue;
  count += 1;
  const style = getComputedStyle(node);
  const [over, under] = [colour(node instanceof SVGElement ? style.fill : style.color), ground(node)].map(luminance);
  const ratio = (Math.max(over, under) + 0.05) / (Math.min(over, under) + 0.05);
  if (ratio < 4.5) faint.push(`${ratio.toFixed(2)}: ${node.tagName} ${texts.currentNode.data}`);
}
return count < 20 ? [`only ${count} texts were found`] : faint;
