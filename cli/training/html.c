/* SPDX-License-Identifier: MIT */
#include "cli/training/html.h"

void html_escape(FILE *out, const char *text)
{
    for (; *text; text++)
        if (*text == '<')
            fputs("&lt;", out);
        else if (*text == '&')
            fputs("&amp;", out);
        else
            fputc(*text, out);
}

void html_head(FILE *out, const char *title)
{
    fprintf(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>%s</title>\n"
        "<style>\n"
        "  body { font: 17px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 1.5rem auto; padding: 0 "
        "1rem;\n         color: #1e1e1e; background: #fff }\n"
        "  a { color: #00558c } p { max-width: 46rem } img { width: 100%%; height: auto; display: block }\n"
        "  .row { display: grid; gap: 1rem;\n"
        "         grid-template-columns: repeat(auto-fill, minmax(min(100%%, 19rem), 1fr)) }\n"
        "  .wide { overflow-x: auto } table { border-collapse: collapse }\n"
        "  th, td { border: 1px solid #ccc; padding: .3rem .6rem; text-align: left; vertical-align: top }\n"
        "</style>\n</head>\n<body>\n<h1>%s</h1>\n",
        title, title);
}

void html_claims(FILE *out, const char *title, const char *source, const claim *claims, int count)
{
    fprintf(out,
            "<h2>%s</h2>\n<div class=\"wide\"><table>\n"
            "<tr><th>%s</th><th>claim</th><th>verdict</th><th>numbers</th></tr>\n",
            title, source);
    for (int i = 0; i < count; i++) {
        fputs("<tr><td>", out), html_escape(out, claims[i].source);
        fputs("</td><td>", out), html_escape(out, claims[i].text);
        fprintf(out, "</td><td><b>%s</b></td><td>", verdict_names[claims[i].verdict]);
        html_escape(out, claims[i].numbers);
        fputs("</td></tr>\n", out);
    }
    fputs("</table></div>\n", out);
}
