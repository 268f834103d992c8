/* Server-sent events, parsed as they arrive. `feed` takes decoded text in any pieces and returns the
 * data of the events that it completed; comments and other fields are skipped. */
export class SseParser {
    #rest = '';
    #data = [];

    feed(text) {
        const events = [];
        this.#rest += text;
        for (;;) {
            const at = this.#rest.search(/[\r\n]/);
            if (at < 0) break;
            // A CR at the very end may be the first half of a CRLF: wait for the rest.
            if (this.#rest[at] === '\r' && at + 1 === this.#rest.length) break;
            const width = this.#rest.startsWith('\r\n', at) ? 2 : 1;
            this.#line(this.#rest.slice(0, at), events);
            this.#rest = this.#rest.slice(at + width);
        }
        return events;
    }

    #line(line, events) {
        if (line === '') {
            if (this.#data.length) events.push(this.#data.join('\n'));
            this.#data = [];
        } else if (line.startsWith('data:')) {
            this.#data.push(line.slice(line[5] === ' ' ? 6 : 5));
        }
    }
}
