// Numbers and times in words, as dtfm-coordinator status says them.

export function duration(seconds) {
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  if (seconds < 99.5) return `${Math.round(seconds)} s`;
  let minutes = Math.round(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  let hours = Math.floor(minutes / 60);
  minutes %= 60;
  if (hours < 24) return minutes && hours < 10 ? `${hours} h ${minutes} min` : `${hours + (minutes >= 30 ? 1 : 0)} h`;
  const all = Math.round(seconds / 3600);
  const days = Math.floor(all / 24);
  hours = all % 24;
  const word = days === 1 ? "1 day" : `${count(days)} days`;
  return hours && days < 10 ? `${word} ${hours} h` : word;
}

export const count = (number) => Math.round(number).toLocaleString("en-US");

const three = (number) => String(Number(number.toPrecision(3)));

export function many(number) {
  for (const word of ["", " thousand", " million", " billion"]) {
    if (number < 999.5) return three(number) + word;
    number /= 1000;
  }
  return `${Number(number.toPrecision(4))} trillion`;
}

export function size(number) {
  for (const unit of ["bytes", "kB", "MB", "GB"]) {
    if (number < 999.5) return `${three(number)} ${unit}`;
    number /= 1000;
  }
  return `${three(number)} TB`;
}

export function rate(gbps) {
  const mbit = gbps * 1000;
  return mbit < 999.5 ? `${three(mbit)} Mbit/s` : `${three(gbps)} Gbit/s`;
}

export const figure = (number) => (Math.abs(number) >= 1e5 || (number && Math.abs(number) < 1e-3) ? number.toExponential(2) : String(Number(number.toPrecision(4))));

export const percent = (part) => (part > 0 && part < 0.01 ? "< 1 %" : `${Math.round(part * 100)} %`);

export function clock(at) {
  const day = new Date(at * 1000);
  const today = new Date().toDateString() === day.toDateString();
  const time = day.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  return today ? time : `${day.toLocaleDateString([], { month: "short", day: "numeric" })}, ${time}`;
}

export function ago(at) {
  const seconds = Math.max(0, Date.now() / 1000 - at);
  return seconds < 5 ? "now" : seconds < 10 ? `${Math.round(seconds)} s ago` : `${duration(seconds)} ago`;
}

export const named = (peer, member) => (member && member.name) || peer.slice(-6);

export const firstUp = (text) => text.slice(0, 1).toUpperCase() + text.slice(1);

// Whether the coordinator prepares itself, or stands by.
export const nobodyLeadsHere = (overview) => ["preparing", "standing-by"].includes(overview.phase);
